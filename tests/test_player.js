// Prints the same as tests/test_player.c, from the WebAssembly of the book's player. Runs after
// player_wasm.js, in node or in a page.
WebAssembly.instantiate(Uint8Array.from(atob(PLAYER_WASM), c => c.charCodeAt(0))).then(({ instance }) => {
  const C = instance.exports;
  let text = '';
  function play(schedule, p, m, t_f, t_b, message) {
    const slot = schedule % 2;
    const end = C.player_play(slot, schedule, p, m, t_f, t_b, message);
    text += `schedule ${schedule} p ${p} m ${m} times ${t_f} ${t_b} ${message}: ${end}`;
    if (end >= 0) text += ` ${C.player_busy(slot)} ${C.player_chunks(slot)}`;
    text += '\n';
    for (let i = 0; i < p && end >= 0; i++) {
      for (let k = 0; k < C.player_ops(slot, i); k++)
        text += ' ' + [C.player_op_what(slot, i, k), C.player_op_micro_batch(slot, i, k), C.player_op_chunk(slot, i, k),
                       C.player_op_start(slot, i, k), C.player_op_end(slot, i, k), C.player_op_arrives(slot, i, k),
                       C.player_op_to(slot, i, k), C.player_in_flight(slot, i, C.player_op_start(slot, i, k))].join('.');
      text += '\n';
    }
  }
  function memory(c) {
    C.player_model(...c);
    text += `model ${c.join(' ')}: ${C.player_parameters().toFixed(0)}\n`;
    for (let stage = 0; stage < 4; stage++)
      for (let n = 1; n <= 1024; n *= 2)
        for (let what = 0; what < 3; what++)
          text += ` ${C.player_state(stage, n, what, 0).toFixed(0)} ${C.player_state(stage, n, what, 1).toFixed(0)}`;
    text += '\n';
    for (let how = 0; how < 3; how++)
      for (let what = 0; what < 4; what++)
        for (let t = 1; t <= 8; t *= 2) text += ` ${C.player_kept(how, what, t).toFixed(0)}`;
    for (let p = 1; p <= 8; p++)
      for (let i = 0; i < p; i++) text += ` ${C.player_stage_kept(p, i).toFixed(0)}`;
    text += '\n';
  }
  for (let schedule = 0; schedule < 8; schedule++)
    for (let p = 1; p <= 8; p++)
      for (let m = 1; m <= 24; m += schedule < 3 ? 1 : 3) {
        play(schedule, p, m, 1, 2, 0);
        play(schedule, p, m, 3, 5, 2);
      }
  [[9, 12, 3, 10, 37, 1], [12, 768, 12, 1024, 50257, 0], [96, 12288, 96, 2048, 51200, 1], [128, 16384, 128, 16384, 50257, 1]].forEach(memory);
  if (typeof document === 'undefined') process.stdout.write(text);
  else document.body.textContent = text;
});
