"""Training engine cases: ranks agree with one device, and options of training change what they say."""
