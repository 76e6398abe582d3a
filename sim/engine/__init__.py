"""Parts of every engine, whatever its policy: the queue, KV memory, draft length, accounts."""
