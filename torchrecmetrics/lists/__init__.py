"""Evaluation of recommended lists: `evaluate_lists`, its sessions, and `agreement` of two runs."""
