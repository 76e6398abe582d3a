"""Decoder models in torch: weights, attention over slotted KV, memory."""
