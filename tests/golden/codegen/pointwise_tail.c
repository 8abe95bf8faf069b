void cpu_poi_fused_mul_exp(void **buffers, const long *sizes) {
  float *const b0 = buffers[0];
  float *const b1 = buffers[1];
  float *const b2 = buffers[2];
  const long x1_blocks = (1003L + 4095L) / 4096L;
  const long total = 10L * x1_blocks;
  for (long o = 0; o < total; o++) {
    const long x1_from = o % x1_blocks * 4096L;
    const long x1_to = minl(x1_from + 4096L, 1003L);
    const long x1_rest = o / x1_blocks;
    const long x0 = x1_rest;
    {
      const long stop = x1_to;
      long x1 = x1_from;
      for (; x1 + 8L <= stop; x1 += 8L) {
        vf32 t1 = ld_f32(b0 + (1003L * x0 + x1), 8);
        vf32 t2 = ld_f32(b1 + x1, 8);
        vf32 t3 = mul_f32(t1, t2);
        vf32 t4 = exp_f32(t3);
        st_f32(b2 + (1003L * x0 + x1), t4, 8);
      }
      if (x1 < stop) { const int n = (int)(stop - x1);
        vf32 t5 = ld_f32(b0 + (1003L * x0 + x1), n);
        vf32 t6 = ld_f32(b1 + x1, n);
        vf32 t7 = mul_f32(t5, t6);
        vf32 t8 = exp_f32(t7);
        st_f32(b2 + (1003L * x0 + x1), t8, n);
      }
    }
  }
}
