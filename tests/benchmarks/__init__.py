"""Measurements that anyone can run by hand; pytest does not collect them."""
