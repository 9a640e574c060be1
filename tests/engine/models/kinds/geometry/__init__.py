"""Networks that estimate geometry."""
