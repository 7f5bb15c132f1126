"""A model on a disk, in three formats, and how it is loaded."""
