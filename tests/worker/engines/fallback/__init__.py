"""Tests of the second engine for what the first one cannot run."""
