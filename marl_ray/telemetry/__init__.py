"""What a run says of itself: rows of numbers, and one stream of them to files, console and trackers."""
