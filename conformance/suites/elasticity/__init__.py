"""Jobs that go on after a rank has died."""
