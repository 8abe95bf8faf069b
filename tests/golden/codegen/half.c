void cpu_poi_fused_add_round_bf16(void **buffers, const long *sizes) {
  unsigned short *const b0 = buffers[0];
  unsigned short *const b1 = buffers[1];
  unsigned short *const b2 = buffers[2];
  const long x0_blocks = (8192L + 4095L) / 4096L;
  const long total = 1L * x0_blocks;
  for (long o = 0; o < total; o++) {
    const long x0_from = o % x0_blocks * 4096L;
    const long x0_to = minl(x0_from + 4096L, 8192L);
    const long x0_rest = o / x0_blocks;
    {
      const long stop = x0_to;
      long x0 = x0_from;
      for (; x0 + 8L <= stop; x0 += 8L) {
        vf32 t1 = ld_bf16(b0 + x0, 8);
        vf32 t2 = ld_f16(b1 + x0, 8);
        vf32 t3 = add_f32(t1, t2);
        vf32 t4 = round_bf16(t3);
        st_bf16(b2 + x0, t4, 8);
      }
      if (x0 < stop) { const int n = (int)(stop - x0);
        vf32 t5 = ld_bf16(b0 + x0, n);
        vf32 t6 = ld_f16(b1 + x0, n);
        vf32 t7 = add_f32(t5, t6);
        vf32 t8 = round_bf16(t7);
        st_bf16(b2 + x0, t8, n);
      }
    }
  }
}
