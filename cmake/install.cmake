# Filled in by the wheel and the C++ package.
