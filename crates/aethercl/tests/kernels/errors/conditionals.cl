#if 1
#else
#else
#endif
#endif
#if (1 +
#endif
#elif 1
#ifdef
#endif
#if 1
