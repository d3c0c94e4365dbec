"""Numbers from lists of predictions: answers, rankings, calibration, significance, HotpotQA, KILT.

Here are measures of rankings, light, so that a command's help can show them.
"""

DEFAULT_MEASURES = ("R@5", "R@20", "R@100", "RR", "AP", "nDCG@10")
