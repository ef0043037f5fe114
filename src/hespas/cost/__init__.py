"""How much work an operation is: FLOPs by type, transcendental functions, bytes moved.

No hardware and no seconds: the estimators price what is counted here.
"""
