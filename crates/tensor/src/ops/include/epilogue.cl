/* A generated epilogue of a kernel whose results are rows of n: tree_v (vectors) and tree_1 (one element) compute the final elements from the
 * sums, and read and write TREE_PARAMETERS. Without TREE, elements are the sums. VW is the width of the vectors.
 */
#ifdef TREE
#if VW == 1
#define TREE_FIRST(v) (v)
#else
#define TREE_FIRST(v) ((v).s0)
#endif
#ifndef WARM
#define WARM(p)
#endif
TREE
#define TREE_V(v, row, column, n) tree_v(v, row, column, n TREE_ARGUMENTS)
#define TREE_1(v, row, column, n) tree_1(v, row, column, n TREE_ARGUMENTS)
#else
#define TREE_PARAMETERS
#define TREE_ARGUMENTS
#define TREE_V(v, row, column, n) (v)
#define TREE_1(v, row, column, n) (v)
#endif
