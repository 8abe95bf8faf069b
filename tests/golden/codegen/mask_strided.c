void cpu_poi_fused_neg(void **buffers, const long *sizes) {
  unsigned char *const b0 = buffers[0];
  double *const b1 = buffers[1];
  double *const b2 = buffers[2];
  const long x1_blocks = (4L + 4095L) / 4096L;
  const long total = 8L * x1_blocks;
  for (long o = 0; o < total; o++) {
    const long x1_from = o % x1_blocks * 4096L;
    const long x1_to = minl(x1_from + 4096L, 4L);
    const long x1_rest = o / x1_blocks;
    const long x0 = x1_rest;
    {
      const long stop = x1_to;
      long x1 = x1_from;
      for (; x1 + 4L <= stop; x1 += 4L) {
        unsigned char t1[4];
        for (int l = 0; l < 4; l++) t1[l] = l < 4 ? b0[(x0 + 8L * (x1 + l))] : 0;
        vmask t2 = ld_bool(t1, 4);
        vf64 t3 = ld_f64(b1 + (4L * x0 + x1), 4);
        vf64 t4 = neg_f64(t3);
        vf64 t5 = sel_f64(t2, t3, t4);
        st_f64(b2 + (4L * x0 + x1), t5, 4);
      }
      if (x1 < stop) { const int n = (int)(stop - x1);
        unsigned char t6[4];
        for (int l = 0; l < 4; l++) t6[l] = l < n ? b0[(x0 + 8L * (x1 + l))] : 0;
        vmask t7 = ld_bool(t6, 4);
        vf64 t8 = ld_f64(b1 + (4L * x0 + x1), n);
        vf64 t9 = neg_f64(t8);
        vf64 t10 = sel_f64(t7, t8, t9);
        st_f64(b2 + (4L * x0 + x1), t10, n);
      }
    }
  }
}
