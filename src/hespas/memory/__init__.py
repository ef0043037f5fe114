"""How much device memory a program holds, and when."""
