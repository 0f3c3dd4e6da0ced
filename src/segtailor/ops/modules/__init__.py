"""The torch modules of the operators, in files of the same names; imported only when a network is built."""
