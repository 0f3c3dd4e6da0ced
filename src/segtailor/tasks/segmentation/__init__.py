"""One class per pixel: labels, cross-entropy, mIoU and relatives, colours, labels inside exported files."""
