"""Running networks: devices, precision, seeds, encoders and their attention, and fast kernels for
CPUs.
"""
