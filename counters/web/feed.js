// Follows the counts: by the stream of the server, and by asking again and again where there is none.

const TIMEOUT = 5000; // milliseconds before an answer counts as missing
const POLL = 2000; // milliseconds between two questions while there is no stream
const SILENCE = 40000; // milliseconds without a sign of life; the server gives one every 15 seconds
const PATIENCE = 3; // failures in a row after which the stream is given up for a while
const RETURN = 30000; // milliseconds until it is tried again

// `onCounts` gets the body of /api/v1/counts, `onUnchanged` its as_of, age_seconds and stale, `onLost` nothing.
export function follow({ onCounts, onUnchanged, onLost }) {
  let source = null, failures = 0, pollTimer, silenceTimer, returnTimer;

  async function poll(again) {
    clearTimeout(pollTimer);
    try {
      const answer = await fetch("/api/v1/counts", { cache: "no-cache", signal: AbortSignal.timeout(TIMEOUT) });
      if (document.hidden) return;
      if (answer.ok) await onCounts(await answer.json());
      else if (answer.status !== 503) onLost();
    } catch {
      onLost();
    }
    if (again && !source && !document.hidden) pollTimer = setTimeout(poll, POLL, true);
  }

  function heard() {
    failures = 0;
    clearTimeout(silenceTimer);
    silenceTimer = setTimeout(failed, SILENCE);
  }

  function failed() {
    failures += 1;
    const givenUp = failures >= PATIENCE;
    if (givenUp || source?.readyState === EventSource.CLOSED) {
      stop();
      returnTimer = setTimeout(open, RETURN);
      poll(true);
    } else {
      poll(false); // the browser opens the stream again by itself; is anybody there meanwhile?
    }
  }

  function open() {
    stop();
    if (document.hidden) return;
    source = new EventSource("/api/v1/stream");
    source.addEventListener("counts", (event) => { heard(); onCounts(JSON.parse(event.data)); });
    source.addEventListener("unchanged", (event) => { heard(); onUnchanged(JSON.parse(event.data)); });
    source.onerror = failed;
  }

  function stop() {
    for (const timer of [pollTimer, silenceTimer, returnTimer]) clearTimeout(timer);
    source?.close();
    source = null;
  }

  // A page that nobody sees holds no connection.
  document.addEventListener("visibilitychange", open);
  open();
}
