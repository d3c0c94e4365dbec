"""Numbers from lists of predictions: answers, rankings, calibration, significance, HotpotQA."""
