void cpu_red_fused_argmax(void **buffers, const long *sizes) {
  float *const b0 = buffers[0];
  long *const b1 = buffers[1];
  const long total = 20L;
  for (long o = 0; o < total; o++) {
    const long x0 = o;
    vf32 a0 = splat_f32(-__builtin_inff());
    long i0 = -1;
    for (long x1 = 0; x1 < 31L; x1 += 1)
      {
        vf32 t1 = splat_f32(b0[(31L * x0 + x1)]);
        if (i0 < 0 || t1 > a0 || (t1 != t1 && a0 == a0)) { a0 = t1; i0 = x1; }
        
      }
    st_i64(b1 + x0, i0, 1);
  }
}
