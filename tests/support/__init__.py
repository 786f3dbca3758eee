"""What tests use: a client, a stack in one process, scripted models, waiting for conditions."""
