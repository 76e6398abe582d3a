"""What every engine has, whatever its policy: the queue, KV memory, draft length, accounts."""
