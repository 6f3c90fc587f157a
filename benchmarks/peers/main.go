// POST /plants with Go's net/http and encoding/json: go build -o FILE benchmarks/peers/main.go; FILE PORT
package main

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"log"
	"net/http"
	"os"
	"strings"
	"sync"
)

type Plant struct {
	ID   *int64  `json:"id,omitempty"`
	Name *string `json:"name"`
	Tag  *string `json:"tag,omitempty"`
}

type Store struct {
	mutex  sync.Mutex
	plants map[int64]Plant
}

func (store *Store) add(id int64, plant Plant) bool {
	store.mutex.Lock()
	defer store.mutex.Unlock()
	_, inUse := store.plants[id]
	if !inUse {
		store.plants[id] = plant
	}
	return !inUse
}

func respond(writer http.ResponseWriter, status int, content any) {
	body, _ := json.Marshal(content)
	writer.Header().Set("Content-Type", "application/json")
	writer.WriteHeader(status)
	writer.Write(body)
}

func main() {
	valid := sha256.Sum256([]byte(os.Getenv("PLANTS_TOKENS")))
	store := Store{plants: map[int64]Plant{}}
	refuse := func(writer http.ResponseWriter, status int, message string) {
		respond(writer, status, map[string]any{"code": status * 100, "message": message})
	}
	http.HandleFunc("/readyz", func(writer http.ResponseWriter, _ *http.Request) {
		respond(writer, 200, map[string]string{"status": "ready"})
	})
	http.HandleFunc("/plants", func(writer http.ResponseWriter, request *http.Request) {
		scheme, token, _ := strings.Cut(request.Header.Get("Authorization"), " ")
		presented := sha256.Sum256([]byte(token))
		if scheme != "Bearer" || subtle.ConstantTimeCompare(presented[:], valid[:]) == 0 {
			refuse(writer, 401, "The token is missing or not valid.")
			return
		}
		var plant Plant
		decoder := json.NewDecoder(http.MaxBytesReader(writer, request.Body, 1<<20))
		if decoder.Decode(&plant) != nil || plant.ID == nil || plant.Name == nil {
			refuse(writer, 400, "The body is not a plant.")
			return
		}
		id := *plant.ID
		plant.ID = nil
		if !store.add(id, plant) {
			refuse(writer, 400, "The id is in use.")
			return
		}
		respond(writer, 200, plant)
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
