"""Decoder models in torch: weights, attention over slotted KV, sampling, memory."""
