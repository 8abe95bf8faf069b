void cpu_poi_fused_add(void **buffers, const long *sizes) {
  long *const b0 = buffers[0];
  long *const b1 = buffers[1];
  const long x0_blocks = (800L + 4095L) / 4096L;
  const long total = 1L * x0_blocks;
  for (long o = 0; o < total; o++) {
    const long x0_from = o % x0_blocks * 4096L;
    const long x0_to = minl(x0_from + 4096L, 800L);
    const long x0_rest = o / x0_blocks;
    vi64 t3 = splat_i64(1L);
    {
      const long stop = x0_to;
      long x0 = x0_from;
      for (; x0 + 4L <= stop; x0 += 4L) {
        long t1[4];
        for (int l = 0; l < 4; l++) t1[l] = l < 4 ? b0[(3L * (x0 + l))] : 0;
        vi64 t2 = ld_i64(t1, 4);
        vi64 t4 = add_i64(t2, t3);
        st_i64(b1 + x0, t4, 4);
      }
      if (x0 < stop) { const int n = (int)(stop - x0);
        long t5[4];
        for (int l = 0; l < 4; l++) t5[l] = l < n ? b0[(3L * (x0 + l))] : 0;
        vi64 t6 = ld_i64(t5, 4);
        vi64 t7 = add_i64(t6, t3);
        st_i64(b1 + x0, t7, n);
      }
    }
  }
}
