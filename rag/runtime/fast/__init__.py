"""CPU kernels: packed layouts, bf16 and int8 encoders."""
