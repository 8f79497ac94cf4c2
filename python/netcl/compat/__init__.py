"""Names of other systems over netcl's: ``ocl_llm`` (a framework over a C driver) and ``plan`` (a plan for one over PyOpenCL). Each only renames; for new programs netcl's own
names are shorter.
"""
