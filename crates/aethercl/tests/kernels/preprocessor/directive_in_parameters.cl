#define WITH_BIAS 1

kernel void directive_in_parameters(global int *out
#if WITH_BIAS
                                    , int bias
#endif
) {
  out[0] = 1
#if WITH_BIAS
           + bias
#endif
      ;
}
