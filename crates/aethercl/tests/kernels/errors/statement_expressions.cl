int outside = ({ 1; });
constant int constant_one = ({ 1; });

kernel void k(global int *out) {
  for (int i = 0; i < 4; i++) {
    out[i] = ({ if (i == 2) break; i; });
    out[i] = ({ if (i == 3) continue; i; });
    out[i] = ({ int t = i; });
    out[i] = ({ goto done; 1; });
    out[i] = ({ int t = 1; t; }) + t;
  }
done:
  out[0] = ({ out[1] = 2; });
}
