"""A test set in, a result out: `evaluate`, `recommend`, `evaluate_lists`, `agreement`."""
