"""One measured pass: the work it stands for, and the file that many of them make."""
