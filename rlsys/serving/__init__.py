"""A trained model in service: its budget card, a client that cuts as in training, an allocator."""
