"""Faultline: why did this SGLang backend fail, and is a GPU of this node to blame?"""

__version__ = "0.1.0"
