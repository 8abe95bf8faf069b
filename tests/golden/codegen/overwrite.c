void cpu_poi_fused_mul(void **buffers, const long *sizes) {
  float *const b0 = buffers[0];
  float *const b1 = buffers[1];
  const long x0_blocks = (620L + 4095L) / 4096L;
  const long total = 1L * x0_blocks;
  for (long o = 0; o < total; o++) {
    const long x0_from = o % x0_blocks * 4096L;
    const long x0_to = minl(x0_from + 4096L, 620L);
    const long x0_rest = o / x0_blocks;
    vf32 t2 = splat_f32(0x1.ccccccccccccdp-1f);
    {
      const long stop = x0_to;
      long x0 = x0_from;
      for (; x0 + 8L <= stop; x0 += 8L) {
        vf32 t1 = ld_f32(b0 + x0, 8);
        vf32 t3 = mul_f32(t1, t2);
        st_f32(b1 + x0, t3, 8);
      }
      if (x0 < stop) { const int n = (int)(stop - x0);
        vf32 t4 = ld_f32(b0 + x0, n);
        vf32 t5 = mul_f32(t4, t2);
        st_f32(b1 + x0, t5, n);
      }
    }
  }
}
