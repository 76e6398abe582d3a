"""docs/validation: a pair measured, predicted and replayed on this machine."""
