"""Named, resumable, pausable work, and exclusive claims on it."""
