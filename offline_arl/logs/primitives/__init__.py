"""Values that every log format has: times, numbers, scores, JSON beyond the standard."""
