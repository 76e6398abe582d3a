"""The forms of kernel costs: compact constants or a table of measured points."""
