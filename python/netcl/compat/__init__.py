"""Interfaces of other systems for netcl: ``ocl_llm`` (a framework over a C driver) and ``plan`` (a plan for a framework over PyOpenCL),
and ``simulated_driver`` (a test harness of a simulated driver). They only rename functions. For new programs, netcl's names are shorter.
"""
