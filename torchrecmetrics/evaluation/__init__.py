"""A test set and a model or its lists in, a result out: `evaluate`, `recommend`, `evaluate_lists`, `agreement`."""
