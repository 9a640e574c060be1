"""Downloads of model files: parallel ranges that resume, checked before they become visible, each file once."""
