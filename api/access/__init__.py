"""Authentication, and admission under the limits of an owner."""
