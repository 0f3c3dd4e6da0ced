"""Networks: one interpreter for any plan, and the adapters that bring published weights in."""
