"""Benchmarks: what the machine spends on each event, beside what others spend. Run them with `make bench`."""
