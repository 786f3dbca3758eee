"""What front ends and workers share: the broker, the session, the protocol."""
