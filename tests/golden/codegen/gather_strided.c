void cpu_poi_fused_add(void **buffers, const long *sizes) {
  long *const b0 = buffers[0];
  long *const b1 = buffers[1];
  const long x0_blocks = (800L + 4095L) / 4096L;
  const long total = 1L * x0_blocks;
  for (long o = 0; o < total; o++) {
    const long x0_from = o % x0_blocks * 4096L;
    const long x0_to = minl(x0_from + 4096L, 800L);
    const long x0_rest = o / x0_blocks;
    vi64 t2 = splat_i64(1L);
    {
      const long stop = x0_to;
      long x0 = x0_from;
      for (; x0 + 4L <= stop; x0 += 4L) {
        vi64 t1 = (vi64){b0[(3L * (x0 + 0L))], b0[(3L * (x0 + 1L))], b0[(3L * (x0 + 2L))], b0[(3L * (x0 + 3L))]};
        vi64 t3 = add_i64(t1, t2);
        st_i64(b1 + x0, t3, 4);
      }
      if (x0 < stop) { const int n = (int)(stop - x0);
        long t4[4];
        for (int l = 0; l < 4; l++) t4[l] = l < n ? b0[(3L * (x0 + l))] : 0;
        vi64 t5 = ld_i64(t4, 4);
        vi64 t6 = add_i64(t5, t2);
        st_i64(b1 + x0, t6, n);
      }
    }
  }
}
