"""The torch side of the operators: imported only when a network is built."""
